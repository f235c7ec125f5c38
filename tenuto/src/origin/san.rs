/// What the simulated storage can do. 0 = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    pub latency_ns: u64,
    pub iops: u64,
    pub bytes_per_second: u64,
    /// Requests served at once.
    pub queue_depth: u32,
}

#[derive(Clone, Debug)]
pub struct San {}

impl San {
    pub fn new(_params: Params) -> San {
        todo!()
    }

    /// When a request that arrives now is done.
    pub fn admit(&mut self, _now_ns: u64, _bytes: u64) -> u64 {
        todo!()
    }
}
