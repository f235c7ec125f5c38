//! The negotiation with a server: fixed newstyle, structured replies, GO.
//!
//! ```text
//! Greeting ─▶ Structured ─▶ Go ─▶ done
//! ```
//!
//! Always true: a reply of any length beyond a small bound, of another option, or out of turn
//! ends it; what the export can do is known before the first request. Deliberately absent: the
//! old way to attach without GO, which cannot say why it failed and tells no block sizes.

use super::{Broken, Export};
use crate::nbd::{self, Reader, answer, info, option};

/// Longest reply to an option that is looked into; descriptions are the longest.
const REPLY_BYTES_MAX: u32 = 16 << 10;
/// Replies of one negotiation: some infos about one export.
const REPLIES_MAX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Greeting,
    Structured,
    Go,
}

/// One negotiation.
#[derive(Clone, Debug)]
pub struct Handshake {
    export: String,
    awaited: Awaited,
    replies: u32,
    structured: bool,
    size_and_flags: Option<(u64, u16)>,
    blocks: Option<(u32, u32)>,
}

/// What came of some input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, without more of it.
    More,
    /// So many bytes are used up; the server is told this.
    Say { used: usize, bytes: Vec<u8> },
    /// The server waits for requests. What follows belongs to the session.
    Done {
        used: usize,
        export: Export,
        structured: bool,
    },
}

impl Handshake {
    pub fn new(export: &str) -> Handshake {
        Handshake {
            export: export.to_owned(),
            awaited: Awaited::Greeting,
            replies: 0,
            structured: false,
            size_and_flags: None,
            blocks: None,
        }
    }

    /// Looks at the input from its start.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, Broken> {
        if self.awaited == Awaited::Greeting {
            return self.greeting(input);
        }
        let mut reader = Reader::new(input);
        let mut head = || {
            let magic = reader.u64()?;
            let option = reader.u32()?;
            let answer = reader.u32()?;
            let length = reader.u32()?;
            Some((magic, option, answer, length))
        };
        let Some((magic, option, answer, length)) = head() else {
            return Ok(Step::More);
        };
        if magic != nbd::OPTION_REPLY_MAGIC || option != self.expected() {
            return Err(Broken::new(
                "the server's reply is to nothing that was asked",
            ));
        }
        if length > REPLY_BYTES_MAX {
            return Err(Broken::new(format!(
                "the server's reply of {length} bytes is too long"
            )));
        }
        let Some(body) = reader.bytes(length as usize) else {
            return Ok(Step::More);
        };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(Broken::new("the server's answer does not end"));
        }
        let used = nbd::OPTION_REPLY_HEAD_BYTES + length as usize;
        match self.awaited {
            Awaited::Structured => self.structured_reply(answer, used),
            _ => self.go_reply(answer, body, used),
        }
    }

    fn expected(&self) -> u32 {
        match self.awaited {
            Awaited::Structured => option::STRUCTURED_REPLY,
            _ => option::GO,
        }
    }

    fn greeting(&mut self, input: &[u8]) -> Result<Step, Broken> {
        let (magics, flags) = nbd::GREETING.split_at(16);
        let said = input.get(..16.min(input.len())).unwrap_or_default();
        if !magics.starts_with(said) {
            return Err(Broken::new(
                "the other side is no NBD server of the new style",
            ));
        }
        let mut reader = Reader::new(input.get(16..).unwrap_or_default());
        let Some(offered) = reader.u16() else {
            return Ok(Step::More);
        };
        if offered & nbd::SERVER_FIXED_NEWSTYLE == 0 {
            return Err(Broken::new("the server does not speak fixed newstyle"));
        }
        let mut client = nbd::CLIENT_FIXED_NEWSTYLE;
        if offered & nbd::SERVER_NO_ZEROES != 0 {
            client |= nbd::CLIENT_NO_ZEROES;
        }
        let mut bytes = client.to_be_bytes().to_vec();
        bytes.extend(nbd::option_request(option::STRUCTURED_REPLY, &[]));
        self.awaited = Awaited::Structured;
        let used = magics.len() + flags.len();
        Ok(Step::Say { used, bytes })
    }

    /// Without structured replies it goes on all the same.
    fn structured_reply(&mut self, answer: u32, used: usize) -> Result<Step, Broken> {
        if answer != answer::ACK && !answer::is_error(answer) {
            return Err(Broken::new("the server's reply is neither yes nor no"));
        }
        self.structured = answer == answer::ACK;
        self.awaited = Awaited::Go;
        let mut body = (self.export.len() as u32).to_be_bytes().to_vec();
        body.extend_from_slice(self.export.as_bytes());
        body.extend_from_slice(&1u16.to_be_bytes());
        body.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        let bytes = nbd::option_request(option::GO, &body);
        Ok(Step::Say { used, bytes })
    }

    fn go_reply(&mut self, answer: u32, body: &[u8], used: usize) -> Result<Step, Broken> {
        if answer == answer::INFO {
            self.note(body)
                .ok_or_else(|| Broken::new("the server's words about the export are cut short"))?;
            let bytes = Vec::new();
            return Ok(Step::Say { used, bytes });
        }
        if answer == answer::ACK {
            let (size_bytes, flags) = self
                .size_and_flags
                .ok_or_else(|| Broken::new("the server tells no size of the export"))?;
            let export = Export::new(size_bytes, flags, self.blocks)?;
            let structured = self.structured;
            return Ok(Step::Done {
                used,
                export,
                structured,
            });
        }
        if !answer::is_error(answer) {
            return Err(Broken::new("the server's reply makes no sense"));
        }
        let why = match answer {
            answer::ERR_UNKNOWN => "the server has no such export",
            answer::ERR_UNSUP => "the server is too old: it does not know NBD_OPT_GO",
            answer::ERR_POLICY => "the server's policy forbids it",
            _ => "the server refuses the export",
        };
        let said = String::from_utf8_lossy(&body[..body.len().min(200)]);
        let said: String = said.chars().filter(|c| !c.is_control()).collect();
        match said.is_empty() {
            true => Err(Broken::new(why)),
            false => Err(Broken::new(format!("{why} ({said})"))),
        }
    }

    /// Unknown infos are none of our business.
    fn note(&mut self, body: &[u8]) -> Option<()> {
        let mut reader = Reader::new(body);
        match reader.u16()? {
            info::EXPORT => self.size_and_flags = Some((reader.u64()?, reader.u16()?)),
            info::BLOCK_SIZE => {
                let (minimum, _preferred) = (reader.u32()?, reader.u32()?);
                self.blocks = Some((minimum, reader.u32()?));
            }
            _ => {}
        }
        Some(())
    }
}
