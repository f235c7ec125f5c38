//! Option haggling.
#[derive(Debug)]
pub struct Handshake;
pub struct Outcome;
