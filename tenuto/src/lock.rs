use crate::fault::Fault;
use std::fs::File;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
}

/// How long to wait while the late I/O of a dead owner lands, and whom to tell.
pub struct Patience<'a> {
    pub wait: Duration,
    pub progress: &'a mut dyn FnMut(&str),
}

impl Patience<'_> {
    pub fn none() -> Patience<'static> {
        todo!()
    }
}

pub fn acquire(_f: &File, _object: &str, _m: Mode, _p: &mut Patience) -> Result<(), Fault> {
    todo!()
}
