//! A table of rules for `image split`, as a user writes it.
//!
//! Invariants: a text that is no table is refused in one line that names the file; one that was
//! accepted means the same when it is read again.

use ::split::Rules;

pub fn rules(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    match Rules::parse(text, "rules.toml") {
        Ok(rules) => {
            let again = Rules::parse(text, "rules.toml").expect("it was accepted");
            assert_eq!(again, rules);
            true
        }
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains("rules.toml"), "{words}");
            assert!(!words.contains('\n'), "{words}");
            false
        }
    }
}
