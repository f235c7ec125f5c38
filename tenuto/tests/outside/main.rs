//! Tests of the real binary from outside: sockets, files, exit codes, kills.
//!
//! One program instead of one per file, because linking the product is what takes time.

// Tests may unwrap; the lint knows that only of functions with `#[test]`, not of their helpers.
#![allow(clippy::unwrap_used)]

mod agents;
mod bench;
mod cli;
mod clients;
mod commit;
mod common;
mod corruption;
mod crash_images;
mod demo;
mod die_at;
mod documents;
mod drain;
mod events;
mod failing;
mod flow;
mod formats;
mod front_end;
mod guest;
mod hostile;
mod hostile_rings;
mod images;
mod kill;
mod late_write;
mod libvirt;
mod limits;
mod lines;
mod logs;
mod machine_limits;
mod machinery;
mod man;
mod monitoring;
mod nbd_origin;
mod nfs;
mod one_writer;
mod openapi;
mod opinion;
mod overlay;
mod package;
mod page;
mod policies;
mod power;
mod progress;
mod qcow2;
mod record;
mod refuse;
mod relayout;
mod reload;
mod removed;
mod reopened;
mod replay;
mod resize;
mod scale;
mod scrub;
mod service;
mod show;
mod shown;
mod ssh;
mod storm;
mod terminal;
mod trace_memory;
mod turns;
mod vhost_boot;
mod vhost_found;
mod vhost_guest;
mod vhost_kill;
mod vhost_migration;
mod vhost_rules;
mod vhost_several;
mod vhost_told;
mod watch;
mod wrong;
