//! Names for the tests of this crate.

use crate::record::Holder;
use engine::types::Uuid;

pub fn id(number: u8) -> Uuid {
    Uuid([number; 16])
}

pub fn holder(number: u8) -> Holder {
    Holder {
        host: id(number),
        cache: id(number),
        boot: id(90),
        session: id(91),
        name: "h".into(),
    }
}
