//! What QEMU says on its monitor (QMP, `docs/interop/qmp-spec`), as far as we need it.
//!
//! Owns the way from bytes to messages: one JSON object a line. Always true: a line is bounded,
//! and whatever is not a message of the protocol is an error, never a panic; a message that we do
//! not know is one that we do not need. Deliberately absent: the socket, and what follows from a
//! message; see `daemon::watch`.

use serde_json::{Value, json};

/// The longest line that is taken. Answers to our commands have some hundred bytes; the greeting
/// of QEMU 7.2 has 200.
pub const LINE_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first line of a session.
    Greeting,
    Return {
        id: Option<u64>,
        /// Of `query-status`: whether the guest runs.
        running: Option<bool>,
    },
    Error {
        id: Option<u64>,
        text: String,
    },
    /// The machine was reset, whoever wanted it.
    Reset,
    /// The machine is off; `guest`: because the guest wanted it.
    Shutdown {
        guest: bool,
    },
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("a line has more than {LINE_BYTES_MAX} bytes")]
    Long,
    #[error("a line is no JSON object")]
    Syntax,
}

/// Cuts what arrives into messages.
#[derive(Debug, Default)]
pub struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Takes bytes as they come; the messages they complete are added to `messages`.
    pub fn take(&mut self, bytes: &[u8], messages: &mut Vec<Message>) -> Result<(), Wrong> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.hold(&rest[..end])?;
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.held);
            if !line.trim_ascii().is_empty() {
                messages.push(parse(&line)?);
            }
        }
        self.hold(rest)
    }

    fn hold(&mut self, part: &[u8]) -> Result<(), Wrong> {
        if self.held.len() + part.len() > LINE_BYTES_MAX {
            return Err(Wrong::Long);
        }
        self.held.extend_from_slice(part);
        Ok(())
    }
}

/// One line. `serde_json` bounds how deep it may be nested.
pub fn parse(line: &[u8]) -> Result<Message, Wrong> {
    let Ok(Value::Object(object)) = serde_json::from_slice(line) else {
        return Err(Wrong::Syntax);
    };
    let id = object.get("id").and_then(Value::as_u64);
    if object.contains_key("QMP") {
        return Ok(Message::Greeting);
    }
    if let Some(value) = object.get("return") {
        let running = value.get("running").and_then(Value::as_bool);
        return Ok(Message::Return { id, running });
    }
    if let Some(error) = object.get("error") {
        let text = error.get("desc").and_then(Value::as_str);
        let text = text.unwrap_or("no reason").chars().take(200).collect();
        return Ok(Message::Error { id, text });
    }
    let data = object.get("data");
    let flag = |key| data.and_then(|data| data.get(key)).and_then(Value::as_bool);
    Ok(match object.get("event").and_then(Value::as_str) {
        Some("RESET") => Message::Reset,
        Some("SHUTDOWN") => Message::Shutdown {
            guest: flag("guest") == Some(true),
        },
        _ => Message::Other,
    })
}

/// A command without arguments, as a line.
pub fn command(name: &str, id: u64) -> Vec<u8> {
    let mut line = json!({ "execute": name, "id": id })
        .to_string()
        .into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As QEMU 7.2 says it.
    const SESSION: &str = concat!(
        r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "#,
        r#""capabilities": ["oob"]}}"#,
        "\r\n",
        r#"{"return": {}, "id": 1}"#,
        "\r\n",
        r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESET", "#,
        r#""data": {"guest": true, "reason": "guest-reset"}}"#,
        "\r\n",
        r#"{"return": {"status": "running", "singlestep": false, "running": true}, "id": 2}"#,
        "\r\n",
        r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESET", "#,
        r#""data": {"guest": false, "reason": "host-qmp-system-reset"}}"#,
        "\r\n",
        r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
        "\r\n",
        r#"{"id": 3, "error": {"class": "GenericError", "desc": "no"}}"#,
        "\r\n",
        r#"{"event": "STOP"}"#,
        "\r\n",
    );

    #[test]
    fn a_session_is_understood_however_it_is_cut() {
        let expected = [
            Message::Greeting,
            Message::Return {
                id: Some(1),
                running: None,
            },
            Message::Reset,
            Message::Return {
                id: Some(2),
                running: Some(true),
            },
            Message::Reset,
            Message::Shutdown { guest: true },
            Message::Error {
                id: Some(3),
                text: "no".into(),
            },
            Message::Other,
        ];
        for step in [1, 3, 17, SESSION.len()] {
            let mut lines = Lines::default();
            let mut messages = Vec::new();
            for part in SESSION.as_bytes().chunks(step) {
                lines.take(part, &mut messages).expect("right");
            }
            assert_eq!(messages, expected);
        }
    }

    #[test]
    fn what_is_no_message_is_an_error_and_a_line_is_bounded() {
        let mut messages = Vec::new();
        let wrong = |bytes: &[u8]| Lines::default().take(bytes, &mut Vec::new());
        for line in ["hello\n", "[]\n", "{\n", "{} {}\n", "\"x\"\n"] {
            assert_eq!(wrong(line.as_bytes()), Err(Wrong::Syntax), "{line}");
        }
        assert_eq!(wrong(&[b'['; 10_000]), Ok(()), "it may still end");
        let deep = [vec![b'['; 10_000], vec![b'\n']].concat();
        assert_eq!(wrong(&deep), Err(Wrong::Syntax), "no stack overflow");
        let mut lines = Lines::default();
        for _ in 0..LINE_BYTES_MAX / 1024 {
            assert_eq!(lines.take(&[b' '; 1024], &mut messages), Ok(()));
        }
        assert_eq!(lines.take(b" ", &mut messages), Err(Wrong::Long));
        assert_eq!(messages, []);
    }
}
