//! Hostile bytes for everything that reads foreign bytes: the body of each fuzz target.
//!
//! Always true: a target is a plain function of its input, so libFuzzer, the test below and a
//! debugger run the very same code. A target panics where the product would panic, and where an
//! invariant it states does not hold. Deliberately absent: any knowledge of how inputs are made.

#![forbid(unsafe_code)]

pub mod backup;
pub mod epochs;
pub mod fill;
pub mod format;
pub mod frame;
pub mod nbd;
pub mod nbd_client;
pub mod places;
pub mod pool;
pub mod qcow2;
pub mod qmp;
pub mod repair;
pub mod rings;
pub mod source;
pub mod split;
pub mod text;
pub mod trace;
pub mod vault;
pub mod vhost_user;

/// The body of a target. Says whether the input got behind all checks: a target whose inputs
/// never do tests nothing, and the test on stable notices.
pub type Target = fn(&[u8]) -> bool;

/// Every target under the name of its binary and its corpus.
pub const TARGETS: [(&str, Target); 39] = [
    ("nbd_session", nbd::session),
    ("nbd_client", nbd_client::session),
    ("qmp", qmp::lines),
    ("superblock", format::superblock),
    ("checkpoint", format::checkpoint),
    ("record", format::record),
    ("footer", format::footer),
    ("fill_record", fill::record),
    ("fill_footer", fill::footer),
    ("ledger", format::ledger),
    ("journal", format::journal),
    ("stage", format::stage),
    ("ring", rings::ring),
    ("block_request", rings::block_request),
    ("in_flight", rings::in_flight),
    ("vhost_user", vhost_user::messages),
    ("configuration", text::configuration),
    ("argument", text::argument),
    ("uri", text::uri),
    ("trace_native", trace::native),
    ("trace_text", trace::text),
    ("debugfs", places::debugfs),
    ("fiwalk", places::fiwalk),
    ("image_header", qcow2::header),
    ("image_extensions", qcow2::extensions),
    ("image_backing", qcow2::backing),
    ("image_entry", qcow2::entries),
    ("image_refcount", qcow2::refcounts),
    ("image_snapshot", qcow2::snapshots),
    ("image_resolve", qcow2::walks),
    ("image_check", qcow2::check),
    ("image_plan", qcow2::plans),
    ("image_epochs", epochs::epochs),
    ("image_inflate", qcow2::compressed),
    ("frame", frame::frame),
    ("vault", vault::vault),
    ("backup_checkpoint", backup::checkpoint),
    ("pool_record", pool::record),
    ("split_rules", split::rules),
];
