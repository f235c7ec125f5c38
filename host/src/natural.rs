//! The order of names for people: runs of digits count as numbers, so `desk-2` is before `desk-10`.
//!
//! Always true: an order in which two names are equal only if they are the same. Deliberately
//! absent: languages; letters go by their code, as in the names of volumes and hosts.

use std::cmp::Ordering;

/// Orders two names.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(one), Some(other)) = (left.chars().next(), right.chars().next()) {
        let order = match (one.is_ascii_digit(), other.is_ascii_digit()) {
            (true, true) => {
                let (number, rest) = digits(left);
                let (against, rest_right) = digits(right);
                (left, right) = (rest, rest_right);
                // Without zeros in front the longer one is the larger one, whatever its length.
                let number = (number.len(), number);
                number.cmp(&(against.len(), against))
            }
            _ => {
                left = &left[one.len_utf8()..];
                right = &right[other.len_utf8()..];
                one.cmp(&other)
            }
        };
        if order.is_ne() {
            return order;
        }
    }
    // `01` and `1` are one number and two names.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The digits at the beginning, without zeros in front, and what follows them.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    (number.trim_start_matches('0'), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let sorted = [
            "a",
            "a-0",
            "desk",
            "desk-1",
            "desk-01",
            "desk-2",
            "desk-2a",
            "desk-10",
            "desk-010-b",
            "desk-99999999999999999999998",
            "desk-99999999999999999999999",
            "desk.1",
            "é1",
        ];
        for (at, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                // `01` stands behind or before `1`, but always at the same place.
                if *a == "desk-01" || *b == "desk-01" {
                    assert_eq!(compare(a, b), compare(b, a).reverse(), "{a} {b}");
                    continue;
                }
                assert_eq!(compare(a, b), at.cmp(&other), "{a} {b}");
            }
        }
        assert_eq!(compare("desk-01", "desk-2"), Ordering::Less);
        assert_eq!(compare("desk-01", "desk-1"), Ordering::Less);
    }
}
