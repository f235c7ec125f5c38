//! Attributes of NTFS, as ntfs-3g gives them: extended attributes of the mounted files.
//!
//! Always true: links are not followed; an attribute that a file has not is `None`.

use super::error::{Error, io};
use std::ffi::{CStr, CString};
use std::io::Error as IoError;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most the kernel lets through. ntfs-3g writes the whole of some attributes also into a buffer
/// that is too small, which becomes EIO, so the buffer is never smaller.
const BYTES_MAX: usize = 64 << 10;

pub(super) const ATTRIBUTES: &CStr = c"system.ntfs_attrib";
/// Made, modified, accessed, changed: eight bytes each.
pub(super) const TIMES: &CStr = c"system.ntfs_times";
pub(super) const ACCESS: &CStr = c"system.ntfs_acl";
pub(super) const SHORT_NAME: &CStr = c"system.ntfs_dos_name";
pub(super) const EXTENDED: &CStr = c"system.ntfs_ea";
pub(super) const OBJECT_ID: &CStr = c"system.ntfs_object_id";
pub(super) const REPARSE: &CStr = c"system.ntfs_reparse_data";
/// Names with a zero between them; only with `streams_interface=windows`.
pub(super) const STREAMS: &CStr = c"ntfs.streams.list";

pub(super) const ATTRIBUTE_ENCRYPTED: u32 = 0x4000;

pub(super) fn get(path: &Path, name: &CStr) -> Result<Option<Vec<u8>>, Error> {
    let c_path = c_path(path)?;
    let mut value = vec![0_u8; BYTES_MAX];
    // SAFETY: both names end with a zero, and the value has the said length.
    let length = unsafe {
        libc::lgetxattr(
            c_path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    if let Ok(length) = usize::try_from(length) {
        value.truncate(length);
        return Ok(Some(value));
    }
    let error = IoError::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => Ok(None),
        // Of short names: the file has several hard links, or is a reparse point.
        Some(libc::EMLINK | libc::ENOENT) if name == SHORT_NAME => Ok(None),
        _ => Err(io(path, "its attributes can not be read")(error)),
    }
}

pub(super) fn set(path: &Path, name: &CStr, value: &[u8]) -> Result<(), Error> {
    let c_path = c_path(path)?;
    // SAFETY: both names end with a zero, and the value has the said length.
    let result = unsafe {
        libc::lsetxattr(
            c_path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = IoError::last_os_error();
    Err(io(path, "its attributes can not be written")(error))
}

/// `FILE_ATTRIBUTE_*` of Windows.
pub(super) fn attributes(path: &Path) -> Result<u32, Error> {
    let value = get(path, ATTRIBUTES)?.unwrap_or_default();
    Ok(value.try_into().map_or(0, u32::from_le_bytes))
}

fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|it| io(path, "it has a zero")(it.into()))
}
