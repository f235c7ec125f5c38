//! A record of the vault: who owns a unit, and who may write its origin.
//!
//! A unit is a volume with its origin. Its records are numbered from 1; the number is the *term*. A
//! record never changes, and its name is never used again while the unit lives, so a host that has
//! read one has read what will always stand there.
//!
//! Three roles are apart in it, because each failure moves one of them: the *owner* serves the unit
//! and gives serials, the *members* hold the copies that a flush counts, and the *drainer* writes
//! the origin. A record without members (p = 0) has the bytes that it had before there were any.
//!
//! Always true: a record with members, or with a drainer that is not the owner, has an incompatible
//! bit, so a program that does not know copies refuses it, one whose flushes are at the origin
//! has another one, and so has one with an open backup window, because a program that did not know
//! it would write the image under its reader; both are never in one record, as the one brings each
//! flush to the image and the other one none; a host is named once among the members,
//! with its cache, because a wiped cache is not the member (C11); parsing checks everything before
//! it returns anything, and never panics on foreign bytes; reserved bytes are zero. Deliberately
//! absent: where a record lies and how it comes to be; see [`crate::vault`].

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
/// Copies of one unit, with the owner's.
pub const MEMBERS_MAX: usize = 8;
/// Of records: members, or a drainer that is not the owner.
const WITH_MEMBERS: u64 = 1;
/// Of records: a program that did not know it could acknowledge what the origin lacks.
const AT_ORIGIN: u64 = 2;
/// Of records: a program that did not know it would write an image that is being read.
const QUIESCED: u64 = 4;
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

/// A copy that an acknowledgment counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub host: Uuid,
    pub cache: Uuid,
    /// A copy that begins anew is another one.
    pub copy: Uuid,
}

/// Why fewer copies are complete than wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Degraded {
    /// A member did not answer, or its device has failed.
    PeerLost = 1,
    /// The owner before was lost: what it left exists once (correction 10).
    TakenOver = 2,
    /// More copies are wanted than there are yet.
    TooFew = 3,
}

impl Degraded {
    fn parse(byte: u8) -> Result<Option<Degraded>, FormatError> {
        match byte {
            0 => Ok(None),
            1 => Ok(Some(Degraded::PeerLost)),
            2 => Ok(Some(Degraded::TakenOver)),
            3 => Ok(Some(Degraded::TooFew)),
            _ => Err(FormatError::Field("degraded")),
        }
    }
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
    /// Serves the unit. None: it was let go of with everything at its origin.
    pub owner: Option<Holder>,
    pub epoch: Epoch,
    /// Writes the origin in this epoch, where that is not the owner: the owner before, as long as
    /// there is no proof that it writes no more.
    pub drainer: Option<Holder>,
    /// Number of the record that gave the unit to its owner; 0 where that is not told.
    pub given: u64,
    /// Copies on other hosts that are wanted: p.
    pub wanted: u8,
    pub degraded: Option<Degraded>,
    /// The origin has every flush that was acknowledged, because copies are missing.
    pub at_origin: bool,
    /// A backup window is open: the origin is at one moment, and no host writes it.
    pub quiesced: bool,
    /// Each has every flush that was acknowledged. Empty: the owner's cache is the only one.
    pub members: Vec<Member>,
}

impl Record {
    /// The host that may write the origin, if there is proof for no other one.
    pub fn drainer(&self) -> Option<&Holder> {
        self.drainer.as_ref().or(self.owner.as_ref())
    }

    pub fn member(&self, host: Uuid) -> Option<&Member> {
        self.members.iter().find(|member| member.host == host)
    }

    /// Another host than the owner has what is not at the origin.
    pub fn has_copies_elsewhere(&self) -> bool {
        let owner = self.owner.as_ref().map(|owner| owner.host);
        self.members.iter().any(|member| Some(member.host) != owner)
    }

    /// It has something that programs of before copies do not know.
    fn has_members(&self) -> bool {
        !self.members.is_empty() || self.drainer.is_some() || self.wanted > 0 || self.given > 0
    }

    /// What a program has to know that reads it.
    fn incompatible(&self) -> u64 {
        let members = if self.has_members() { WITH_MEMBERS } else { 0 };
        let origin = if self.at_origin { AT_ORIGIN } else { 0 };
        let window = if self.quiesced { QUIESCED } else { 0 };
        members | origin | window
    }

    /// Its fields fit together.
    fn check(&self) -> Result<(), FormatError> {
        let hosts = |at: usize| self.members[..at].iter().map(|member| member.host);
        let mut members = self.members.iter().enumerate();
        if members.any(|(at, member)| hosts(at).any(|host| host == member.host)) {
            return Err(FormatError::Field("members"));
        }
        let alone = self.members.is_empty() && self.drainer.is_none() && self.given == 0;
        if self.owner.is_none() && !alone {
            return Err(FormatError::Field("owners"));
        }
        if self.at_origin && (self.owner.is_none() || self.degraded.is_none()) {
            return Err(FormatError::Field("at origin"));
        }
        if self.quiesced && (self.owner.is_none() || self.at_origin) {
            return Err(FormatError::Field("quiesced"));
        }
        if self.given > self.number {
            return Err(FormatError::Field("given"));
        }
        match usize::from(self.wanted) < MEMBERS_MAX {
            true => Ok(()),
            false => Err(FormatError::Field("wanted")),
        }
    }
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
struct MemberBytes {
    host: [u8; 16],
    cache: [u8; 16],
    copy: [u8; 16],
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
    drainers: U16,
    drainer_name_bytes: U16,
    wanted: u8,
    degraded: u8,
    member_count: U16,
    given: U64,
    drainer: HolderBytes,
    members: [MemberBytes; MEMBERS_MAX],
}

const _: () = assert!(size_of::<RecordBytes>() == 792 && 792 <= RECORD_BYTES);
const _: () = assert!(core::mem::offset_of!(RecordBytes, owner) == 136);
const _: () = assert!(core::mem::offset_of!(RecordBytes, drainers) == 264);
const _: () = assert!(core::mem::offset_of!(RecordBytes, members) == 408);

/// How many, and of the name how many bytes.
fn put_holder(holder: Option<&Holder>) -> (U16, U16, HolderBytes) {
    let mut name = [0; HOST_NAME_BYTES_MAX];
    let name_bytes = holder.map_or(0, |holder| put_text(&mut name, &holder.name));
    let zero = Uuid([0; 16]);
    let id = |of: fn(&Holder) -> Uuid| holder.map_or(zero, of).0;
    let bytes = HolderBytes {
        host: id(|it| it.host),
        cache: id(|it| it.cache),
        boot: id(|it| it.boot),
        session: id(|it| it.session),
        name,
    };
    let count = U16::new(holder.is_some().into());
    (count, U16::new(name_bytes), bytes)
}

fn take_holder(
    count: U16,
    name_bytes: U16,
    bytes: &HolderBytes,
) -> Result<Option<Holder>, FormatError> {
    match count.get() {
        0 if name_bytes.get() != 0 => Err(FormatError::Field("name")),
        0 => {
            zeroes(bytes.as_bytes())?;
            Ok(None)
        }
        1 => Ok(Some(Holder {
            host: Uuid(bytes.host),
            cache: Uuid(bytes.cache),
            boot: Uuid(bytes.boot),
            session: Uuid(bytes.session),
            name: text(&bytes.name, name_bytes.get())?,
        })),
        _ => Err(FormatError::Field("owners")),
    }
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.number > 0, "records are numbered from 1");
        assert!(self.members.len() <= MEMBERS_MAX, "members are bounded");
        assert!(self.check().is_ok(), "a record that is made can be read");
        let (owners, name_bytes, owner) = put_holder(self.owner.as_ref());
        let (drainers, drainer_name_bytes, drainer) = put_holder(self.drainer.as_ref());
        let mut members = [MemberBytes {
            host: [0; 16],
            cache: [0; 16],
            copy: [0; 16],
        }; MEMBERS_MAX];
        for (to, from) in members.iter_mut().zip(&self.members) {
            (to.host, to.cache, to.copy) = (from.host.0, from.cache.0, from.copy.0);
        }
        let head = RecordBytes {
            prefix: Prefix::new(Kind::VaultRecord),
            incompatible: U64::new(self.incompatible()),
            cluster: self.cluster.0,
            unit: self.unit.0,
            number: U64::new(self.number),
            nonce: self.nonce.0,
            before: self.before.0,
            flags: U64::new(0),
            epoch: U64::new(self.epoch.number),
            epoch_nonce: self.epoch.nonce.0,
            owners,
            name_bytes,
            reserved: [0; 4],
            owner,
            drainers,
            drainer_name_bytes,
            wanted: self.wanted,
            degraded: self.degraded.map_or(0, |why| why as u8),
            member_count: U16::new(self.members.len() as u16),
            given: U64::new(self.given),
            drainer,
            members,
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
        let incompatible = head.incompatible.get();
        if incompatible & !(WITH_MEMBERS | AT_ORIGIN | QUIESCED) != 0 {
            return Err(FormatError::Incompatible(incompatible));
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
        let record = Record {
            cluster: Uuid(head.cluster),
            unit: Uuid(head.unit),
            number: head.number.get(),
            nonce: Uuid(head.nonce),
            before: Uuid(head.before),
            owner: take_holder(head.owners, head.name_bytes, &head.owner)?,
            epoch: Epoch {
                number: head.epoch.get(),
                nonce: Uuid(head.epoch_nonce),
            },
            drainer: take_holder(head.drainers, head.drainer_name_bytes, &head.drainer)?,
            given: head.given.get(),
            wanted: head.wanted,
            degraded: Degraded::parse(head.degraded)?,
            at_origin: incompatible & AT_ORIGIN != 0,
            quiesced: incompatible & QUIESCED != 0,
            members: take_members(head)?,
        };
        record.check()?;
        if record.incompatible() != incompatible {
            return Err(FormatError::Field("incompatible"));
        }
        match record.degraded.is_none() || record.has_members() {
            true => Ok(record),
            false => Err(FormatError::Field("degraded")),
        }
    }
}

fn take_members(head: &RecordBytes) -> Result<Vec<Member>, FormatError> {
    let count = usize::from(head.member_count.get());
    if count > MEMBERS_MAX {
        return Err(FormatError::Field("members"));
    }
    let (members, rest) = head.members.split_at(count);
    zeroes(rest.as_bytes())?;
    let member = |bytes: &MemberBytes| Member {
        host: Uuid(bytes.host),
        cache: Uuid(bytes.cache),
        copy: Uuid(bytes.copy),
    };
    Ok(members.iter().map(member).collect())
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
            drainer: None,
            given: 0,
            wanted: 0,
            degraded: None,
            at_origin: false,
            quiesced: false,
            members: Vec::new(),
        }
    }

    fn with_members() -> Record {
        let member = |number: usize| Member {
            host: Uuid([20 + number as u8; 16]),
            cache: Uuid([6; 16]),
            copy: Uuid([7; 16]),
        };
        Record {
            drainer: record().owner,
            given: 6,
            wanted: 7,
            degraded: Some(Degraded::TakenOver),
            at_origin: false,
            members: (0..MEMBERS_MAX).map(member).collect(),
            ..record()
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
            with_members(),
            Record {
                at_origin: true,
                ..with_members()
            },
            Record {
                quiesced: true,
                ..with_members()
            },
            Record {
                quiesced: true,
                ..record()
            },
            Record {
                members: with_members().members[..2].to_vec(),
                drainer: None,
                ..with_members()
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

    /// What the version before copies has written, byte for byte: 264 bytes and zeroes.
    #[test]
    fn a_record_without_members_has_the_bytes_that_it_had() {
        let bytes = record().encode();
        assert!(bytes[264..].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[16..24], [0; 8], "no incompatible bit");
        assert_eq!(with_members().encode()[16..24], 1_u64.to_le_bytes());
    }

    /// Fails when: a program of before takes a record with an open window for one without.
    #[test]
    fn an_open_window_is_a_bit_that_programs_of_before_refuse() {
        let bits = |quiesced, record: Record| Record { quiesced, ..record }.encode()[16];
        assert_eq!((bits(false, record()), bits(true, record())), (0, 4));
        assert_eq!(
            (bits(false, with_members()), bits(true, with_members())),
            (1, 5)
        );
        let mut bytes = record().encode();
        (bytes[16], bytes[128]) = (4, 0);
        bytes[136..264].fill(0);
        bytes[130] = 0;
        seal(&mut bytes);
        assert_eq!(Record::parse(&bytes), Err(FormatError::Field("quiesced")));
    }

    #[test]
    fn members_that_contradict_each_other_are_refused() {
        let mut bytes = with_members().encode();
        let (from, to) = (408, 408 + 48);
        bytes.copy_within(from..from + 48, to);
        seal(&mut bytes);
        assert_eq!(Record::parse(&bytes), Err(FormatError::Field("members")));
        for (at, value) in [
            (266, 65),
            (268, 8),
            (269, 9),
            (270, 9),
            (272, 8),
            (16, 0),
            (16, 4),
            (16, 7),
            (16, 9),
            (16, 2),
        ] {
            let mut bytes = with_members().encode();
            bytes[at] = value;
            seal(&mut bytes);
            assert!(Record::parse(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn no_byte_of_a_record_changes_unseen() {
        let good = with_members().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Record::parse(&bad).is_err(), "byte {at}");
        }
    }
}
