//! A host of the cluster as others see it, and what names look like as text.

use engine::types::Uuid;
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: Uuid,
    pub name: String,
    pub domain: String,
    /// As in "10.0.0.1:7440".
    pub addresses: Vec<String>,
}

pub fn fresh_id() -> Uuid {
    Uuid(*uuid::Uuid::new_v4().as_bytes())
}

pub fn parse_id(text: &str) -> Option<Uuid> {
    let parsed = uuid::Uuid::parse_str(text.trim()).ok()?;
    Some(Uuid(*parsed.as_bytes()))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}
