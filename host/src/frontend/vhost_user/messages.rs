//! The messages of vhost-user, as calls of the handler.
//!
//! Owns nothing but the change of form. Always true: what the handler refuses comes out as
//! `ReqHandlerError`, which nothing else does, so the connection can tell a refusal from a broken
//! wire. Deliberately absent: the descriptors of messages we do not offer; they are closed.

use super::DataSide;
use super::guest_memory::{Place, REGIONS_MAX};
use super::handler::{Handler, Refusal};
use super::queue::Halves;
use std::fs::File;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use vring::inflight::Layout;

/// In postcopy, which is not offered, the addresses of mappings.
type Bases<T> = Result<Option<T>>;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::ReqHandlerError(std::io::Error::other(refusal))
    }
}

fn place(region: &VhostUserMemoryRegion) -> Place {
    Place {
        guest: region.guest_phys_addr,
        bytes: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    }
}

fn layout(inflight: &VhostUserInflight) -> Layout {
    Layout {
        queues: inflight.num_queues,
        size: inflight.queue_size,
    }
}

const NOT_OFFERED: Error = Error::InvalidOperation("it was not offered");

impl<D: DataSide> VhostUserBackendReqHandlerMut for Handler<D> {
    /// Says that a session begins, which the connection does.
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(self.disown()?)
    }

    fn reset_device(&mut self) -> Result<()> {
        Ok(self.reset()?)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.read_features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        Ok(Handler::set_features(self, features)?)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Bases<Vec<u64>> {
        let table: Vec<_> = regions.iter().map(place).zip(files).collect();
        self.set_memory(&table)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        Ok(self.set_size(index, size)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let halves = Halves {
            descriptors,
            available,
            used,
        };
        let logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        Ok(self.set_halves(index, halves, logged.then_some(log))?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        Ok(self.set_base(index, base)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.base(index)?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        Ok(self.set_kick(index.into(), file)?)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        Ok(self.set_call(index.into(), file)?)
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        Ok(self.set_error(index.into(), file)?)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(self.offered_protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        Ok(Handler::set_protocol_features(self, features)?)
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues().into())
    }

    fn set_vring_enable(&mut self, index: u32, enabled: bool) -> Result<()> {
        Ok(self.enable(index, enabled)?)
    }

    fn get_config(
        &mut self,
        offset: u32,
        bytes: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        Ok(self.read_config(offset, bytes))
    }

    /// A migration may set no more than the guest, since the rest of our space says what is there.
    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Ok(self.write_config(offset, bytes)?)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let (file, bytes) = self.make_region(layout(inflight))?;
        let mut made = *inflight;
        made.mmap_size = bytes;
        made.mmap_offset = 0;
        Ok((made, file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let (offset, bytes) = (inflight.mmap_offset, inflight.mmap_size);
        Ok(self.set_region(layout(inflight), &file, offset, bytes)?)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Bases<u64> {
        self.add_memory(place(region), &file)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Ok(self.remove_memory(place(region))?)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        Ok(self.set_log(&file, log.mmap_offset, log.mmap_size)?)
    }
}
