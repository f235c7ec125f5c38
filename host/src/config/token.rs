//! The token that readers of the web page need.
//!
//! Always true: what a token is appears nowhere: it has no `Debug` and no `Display`, and an error
//! about its file names the file alone. Comparing takes the same time wherever the first
//! difference is.

use super::Wrong;
use crate::error::cause;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Short ones can be guessed over the network.
const CHARS_MIN: usize = 16;
const CHARS_MAX: usize = 512;
const RIGHT: &str = "write one line of 16 or more letters and digits into it, as in \
                     `openssl rand -hex 24`, readable by its owner and group only";

pub struct Token(String);

impl Token {
    pub fn read(path: &Path) -> Result<Token, Wrong> {
        let wrong = |what: String| Wrong::new(format!("{}: {what}", path.display()), RIGHT);
        let text = std::fs::read_to_string(path).map_err(|error| wrong(cause(&error)))?;
        let mode = std::fs::metadata(path).map_err(|error| wrong(cause(&error)))?;
        if mode.permissions().mode() & 0o007 != 0 {
            return Err(wrong("every user of this host can read it".into()));
        }
        let token = text.trim();
        let letters = |byte: u8| byte.is_ascii_graphic();
        if !(CHARS_MIN..=CHARS_MAX).contains(&token.len()) || !token.bytes().all(letters) {
            return Err(wrong("holds no token".into()));
        }
        Ok(Token(token.into()))
    }

    pub fn is(&self, offered: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), offered.as_bytes());
        let differ = ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b));
        // Else a compiler may leave at the first difference.
        let differ = std::hint::black_box(differ);
        ours.len() == theirs.len() && differ == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, mode: u32) -> Result<Token, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        std::fs::write(&path, text).expect("written");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("set");
        Token::read(&path).map_err(|wrong| wrong.what)
    }

    #[test]
    fn a_token_is_one_line_of_letters_that_others_cannot_read() {
        let token = written("0123456789abcdef\n", 0o640).expect("right");
        assert!(token.is("0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdeX",
            "0123456789abcdef0",
        ] {
            assert!(!token.is(other), "{other}");
        }
        for (text, mode) in [
            ("0123456789abcdef", 0o644),
            ("0123456789abcde", 0o600),
            ("", 0o600),
            ("0123456789 abcdef", 0o600),
            ("0123456789abcdef\n0123456789abcdef", 0o600),
        ] {
            let what = written(text, mode).err().expect("wrong");
            assert!(text.is_empty() || !what.contains(text), "{what}");
        }
    }
}
