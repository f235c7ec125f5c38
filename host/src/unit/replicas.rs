//! How many copies of a clustered volume other hosts shall have.
//!
//! Owns the change of that number while the volume is served. Deliberately absent: what a copy is
//! and who has one.

use super::Manager;

impl Manager {
    /// Another number of copies for a volume, from now on.
    pub(super) fn set_replicas(&mut self, name: &str, replicas: u8) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.settings.replicas = replicas;
        }
    }
}
