use crate::fault::Fault;
use crate::lock::Patience;
use crate::target::Target;
use std::path::Path;

/// Opens an existing cache for reading and writing and takes its lock.
pub fn open(_path: &Path, _patience: &mut Patience) -> Result<Target, Fault> {
    todo!()
}

/// A cache in the making: locked, nothing on it changed yet.
pub struct NewCache {
    /// `size_bytes == 0` for a new file: nothing to inspect.
    pub target: Target,
    created: bool,
}

/// Opens or creates the file. Refuses mounted devices and, unless forced, foreign signatures.
/// The caller inspects `target` for a dirty cache before it calls `allocate`.
pub fn claim(_path: &Path, _force: bool, _patience: &mut Patience) -> Result<NewCache, Fault> {
    todo!()
}

impl NewCache {
    /// Gives the file its size, all of it allocated; a block device must be as large.
    pub fn allocate(self, _bytes: u64) -> Result<Target, Fault> {
        let _ = self.created;
        todo!()
    }
}
