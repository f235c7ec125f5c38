//! A record of the vault: who owns a unit, and who may write its origin.
//!
//! A unit is a volume with its origin. Its records are numbered from 1; the number is the *term*. A
//! record never changes, and its name is never used again while the unit lives, so a host that has
//! read one has read what will always stand there.
//!
//! Always true: parsing checks everything before it returns anything, and never panics on foreign
//! bytes; reserved bytes are zero. Deliberately absent: where a record lies and how it comes to be;
//! see [`crate::vault`].

use alloc::string::String;
use alloc::vec::Vec;
use engine::format::{FormatError, Kind, Prefix, block, check, put_text, seal, text, zeroes};
use engine::types::Uuid;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Of a record, and of a pointer.
pub const RECORD_BYTES: usize = 4096;
/// Longest name of a host, for people.
pub const HOST_NAME_BYTES_MAX: usize = 64;
/// Longest place of a vault.
pub const VAULT_BYTES_MAX: usize = 1024;

/// One life of a daemon on one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The identity that its certificate has.
    pub host: Uuid,
    /// A cache that was made anew has nothing of what the old one had.
    pub cache: Uuid,
    /// Of the kernel: requests of an earlier one are not under way any more, but for those that
    /// the storage has.
    pub boot: Uuid,
    /// Of the daemon.
    pub session: Uuid,
    /// For people.
    pub name: String,
}

impl Holder {
    /// The same host with the same cache, whichever run it is.
    pub fn is_same_host(&self, other: &Holder) -> bool {
        self.host == other.host && self.cache == other.cache
    }
}

/// The right to write the origin. Each epoch has a ledger and a journal of its own, so a late write
/// of one holder never lands in what another one reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// 0 = the unit was never written.
    pub number: u64,
    /// In the names of ledger and journal: two who want the same epoch make two files.
    pub nonce: Uuid,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub cluster: Uuid,
    pub unit: Uuid,
    /// The term, from 1.
    pub number: u64,
    /// Tells this record from another one that was to have the same number.
    pub nonce: Uuid,
    /// Nonce of the record before; zero for the first.
    pub before: Uuid,
    /// Serves the unit and writes its origin. None: it was let go of with everything at its origin.
    pub owner: Option<Holder>,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HolderBytes {
    host: [u8; 16],
    cache: [u8; 16],
    boot: [u8; 16],
    session: [u8; 16],
    name: [u8; HOST_NAME_BYTES_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordBytes {
    prefix: Prefix,
    incompatible: U64,
    cluster: [u8; 16],
    unit: [u8; 16],
    number: U64,
    nonce: [u8; 16],
    before: [u8; 16],
    flags: U64,
    epoch: U64,
    epoch_nonce: [u8; 16],
    owners: U16,
    name_bytes: U16,
    reserved: [u8; 4],
    owner: HolderBytes,
}

const _: () = assert!(size_of::<RecordBytes>() == 264 && 264 <= RECORD_BYTES);
const _: () = assert!(core::mem::offset_of!(RecordBytes, owner) == 136);

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.number > 0, "records are numbered from 1");
        let mut name = [0; HOST_NAME_BYTES_MAX];
        let name_bytes = self
            .owner
            .as_ref()
            .map_or(0, |owner| put_text(&mut name, &owner.name));
        let zero = Uuid([0; 16]);
        let id = |of: fn(&Holder) -> Uuid| self.owner.as_ref().map_or(zero, of).0;
        let head = RecordBytes {
            prefix: Prefix::new(Kind::VaultRecord),
            incompatible: U64::new(0),
            cluster: self.cluster.0,
            unit: self.unit.0,
            number: U64::new(self.number),
            nonce: self.nonce.0,
            before: self.before.0,
            flags: U64::new(0),
            epoch: U64::new(self.epoch.number),
            epoch_nonce: self.epoch.nonce.0,
            owners: U16::new(self.owner.is_some().into()),
            name_bytes: U16::new(name_bytes),
            reserved: [0; 4],
            owner: HolderBytes {
                host: id(|it| it.host),
                cache: id(|it| it.cache),
                boot: id(|it| it.boot),
                session: id(|it| it.session),
                name,
            },
        };
        let mut bytes = block(RECORD_BYTES);
        bytes[..size_of::<RecordBytes>()].copy_from_slice(head.as_bytes());
        seal(&mut bytes);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Record, FormatError> {
        if bytes.len() != RECORD_BYTES {
            return Err(FormatError::Short);
        }
        check(bytes, Kind::VaultRecord)?;
        let (head, rest) = RecordBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        zeroes(&head.reserved)?;
        if head.incompatible.get() != 0 {
            return Err(FormatError::Incompatible(head.incompatible.get()));
        }
        if head.flags.get() != 0 {
            return Err(FormatError::Field("flags"));
        }
        if !(1..u64::MAX).contains(&head.number.get()) {
            return Err(FormatError::Field("number"));
        }
        if head.epoch.get() >= u64::MAX / 2 {
            return Err(FormatError::Field("epoch"));
        }
        let owner = match head.owners.get() {
            0 => {
                zeroes(head.owner.as_bytes())?;
                None
            }
            1 => Some(Holder {
                host: Uuid(head.owner.host),
                cache: Uuid(head.owner.cache),
                boot: Uuid(head.owner.boot),
                session: Uuid(head.owner.session),
                name: text(&head.owner.name, head.name_bytes.get())?,
            }),
            _ => return Err(FormatError::Field("owners")),
        };
        if owner.is_none() && head.name_bytes.get() != 0 {
            return Err(FormatError::Field("name"));
        }
        Ok(Record {
            cluster: Uuid(head.cluster),
            unit: Uuid(head.unit),
            number: head.number.get(),
            nonce: Uuid(head.nonce),
            before: Uuid(head.before),
            owner,
            epoch: Epoch {
                number: head.epoch.get(),
                nonce: Uuid(head.epoch_nonce),
            },
        })
    }
}

/// What lies at `IMAGE.tenuto` of a unit: the way to its records. It never changes. Programs that
/// know no clusters take it for no ledger of theirs, and refuse the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    pub cluster: Uuid,
    pub unit: Uuid,
    /// Of the file system object that it was made for, where that lasts: a copy of image and
    /// pointer is another unit.
    pub inode: u64,
    /// As the configuration of the host had it that made the unit: `beside` or `dir:PATH`.
    pub vault: String,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PointerBytes {
    prefix: Prefix,
    incompatible: U64,
    cluster: [u8; 16],
    unit: [u8; 16],
    inode: U64,
    vault_bytes: U16,
    reserved: [u8; 6],
    vault: [u8; VAULT_BYTES_MAX],
}

const _: () = assert!(size_of::<PointerBytes>() == 72 + VAULT_BYTES_MAX);

impl Pointer {
    pub fn encode(&self) -> Vec<u8> {
        let mut vault = [0; VAULT_BYTES_MAX];
        let vault_bytes = put_text(&mut vault, &self.vault);
        let head = PointerBytes {
            prefix: Prefix::new(Kind::Pointer),
            incompatible: U64::new(0),
            cluster: self.cluster.0,
            unit: self.unit.0,
            inode: U64::new(self.inode),
            vault_bytes: U16::new(vault_bytes),
            reserved: [0; 6],
            vault,
        };
        let mut bytes = block(RECORD_BYTES);
        bytes[..size_of::<PointerBytes>()].copy_from_slice(head.as_bytes());
        seal(&mut bytes);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Pointer, FormatError> {
        if bytes.len() != RECORD_BYTES {
            return Err(FormatError::Short);
        }
        check(bytes, Kind::Pointer)?;
        let (head, rest) = PointerBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        zeroes(&head.reserved)?;
        if head.incompatible.get() != 0 {
            return Err(FormatError::Incompatible(head.incompatible.get()));
        }
        Ok(Pointer {
            cluster: Uuid(head.cluster),
            unit: Uuid(head.unit),
            inode: head.inode.get(),
            vault: text(&head.vault, head.vault_bytes.get())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            cluster: Uuid([1; 16]),
            unit: Uuid([2; 16]),
            number: 7,
            nonce: Uuid([3; 16]),
            before: Uuid([4; 16]),
            owner: Some(Holder {
                host: Uuid([5; 16]),
                cache: Uuid([6; 16]),
                boot: Uuid([7; 16]),
                session: Uuid([8; 16]),
                name: "host-a".into(),
            }),
            epoch: Epoch {
                number: 3,
                nonce: Uuid([9; 16]),
            },
        }
    }

    #[test]
    fn a_record_and_a_pointer_are_read_as_they_were_written() {
        let all = [
            record(),
            Record {
                owner: None,
                ..record()
            },
        ];
        for record in all {
            assert_eq!(Record::parse(&record.encode()), Ok(record));
        }
        let pointer = Pointer {
            cluster: Uuid([1; 16]),
            unit: Uuid([2; 16]),
            inode: 77,
            vault: "dir:/mnt/shared".into(),
        };
        assert_eq!(Pointer::parse(&pointer.encode()), Ok(pointer.clone()));
        assert!(Record::parse(&pointer.encode()).is_err(), "of another kind");
    }

    #[test]
    fn no_byte_of_a_record_changes_unseen() {
        let good = record().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Record::parse(&bad).is_err(), "byte {at}");
        }
    }
}
