//! The transmission phase: requests in, replies out.

#[derive(Debug)]
pub struct Transmission;

/// The head of a reply, small enough to lie beside its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: [u8; Frame::BYTES_MAX],
    length: u8,
}

impl Frame {
    pub const BYTES_MAX: usize = 32;

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// One part of the answer to a read; lengths are never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The frame is followed by these bytes.
    Data { offset: u64, length: u32 },
    /// Reads as zeroes; nothing follows.
    Hole { offset: u64, length: u32 },
}

/// Allocation of consecutive bytes. The length is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub length: u64,
    pub state: ExtentState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    Data,
    /// Allocated, and known to read as zeroes.
    Zero,
    /// Not allocated; reads as zeroes.
    Hole,
}

/// What a client is told about a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("operation not permitted")]
    NotPermitted,
    #[error("input/output error")]
    Io,
    #[error("invalid argument")]
    Invalid,
    #[error("no space left")]
    NoSpace,
    #[error("value too large")]
    Overflow,
    #[error("operation not supported")]
    NotSupported,
    #[error("export is being shut down")]
    Shutdown,
}

impl From<engine::event::Refusal> for Error {
    fn from(refusal: engine::event::Refusal) -> Error {
        todo!()
    }
}
