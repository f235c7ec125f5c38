//! A broken promise: of which sort it is, and in words.
//!
//! Always true: whatever is not said to be something else is a matter of safety. Deliberately
//! absent: who notices.

use std::fmt;

/// Which kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Data is lost or wrong, a refusal has no reason, an order was disobeyed.
    Safety,
    /// Without faults something does not come to its end within the bound.
    Liveness,
    /// The engine panics.
    Crash,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Safety, Class::Liveness, Class::Crash];

    pub const fn name(self) -> &'static str {
        match self {
            Class::Safety => "safety",
            Class::Liveness => "liveness",
            Class::Crash => "crash",
        }
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub class: Class,
    pub words: String,
}

impl Broken {
    /// Nothing comes to an end any more.
    pub fn stuck(words: impl Into<String>) -> Broken {
        Broken {
            class: Class::Liveness,
            words: words.into(),
        }
    }

    pub fn crash(words: impl Into<String>) -> Broken {
        Broken {
            class: Class::Crash,
            words: words.into(),
        }
    }

    /// The same, told with the place where it was seen.
    pub fn at(self, place: impl fmt::Display) -> Broken {
        Broken {
            words: format!("{place}: {}", self.words),
            ..self
        }
    }
}

impl From<String> for Broken {
    fn from(words: String) -> Broken {
        Broken {
            class: Class::Safety,
            words,
        }
    }
}

impl From<&str> for Broken {
    fn from(words: &str) -> Broken {
        Broken::from(words.to_owned())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
