use crate::fault::Fault;
use crate::lock::Patience;
use crate::origin::san::San;
use crate::target::Target;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The only writer.
    Write,
    /// One of several readers.
    Read,
}

/// How to open a raw image.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: PathBuf,
    pub access: Access,
    /// The user said `format = "raw"`: do not look at the first bytes.
    pub format_raw: bool,
    /// Where ledger and journal lie if not beside the image.
    pub journal_place: Option<PathBuf>,
    /// Create ledger and journal (with `Access::Write` only).
    pub create: bool,
}

/// The files of one volume.
pub struct OpenVolume {
    pub origin: Arc<Target>,
    pub ledger: Option<Arc<Target>>,
    pub journal: Option<Arc<Target>>,
    /// Where they are or would be; `None` beside a block device without a place.
    pub ledger_path: Option<PathBuf>,
    pub journal_path: Option<PathBuf>,
    /// Delays the completions of origin requests when present.
    pub san: Option<San>,
}

pub fn open(_request: &Request, _patience: &mut Patience) -> Result<OpenVolume, Fault> {
    todo!()
}
