use crate::buffer::Arena;
use crate::fault::Fault;
use engine::types::Uuid;
use std::path::Path;

/// The stage file; keeps its lock while it lives.
pub struct Stage {}

impl Stage {
    /// Opens or creates; the arena covers max(existing, wanted) bytes and goes to `HostMemory`.
    pub fn open(_dir: &Path, _uuid: Uuid, _wanted_bytes: u64) -> Result<(Stage, Arena), Fault> {
        todo!()
    }

    pub fn path(&self) -> &Path {
        todo!()
    }

    /// True when the file was there before.
    pub fn found(&self) -> bool {
        todo!()
    }

    pub fn remove(self) -> Result<(), Fault> {
        todo!()
    }
}
