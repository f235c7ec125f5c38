//! Block devices of this host by the kernel's ublk driver, with a volume's NBD socket behind them.
//!
//! [`requests`] knows which requests are not answered, [`link`] carries them over one connection
//! after another, [`queue`] takes them from the kernel and answers it, and [`device`] adds,
//! recovers, grows and deletes devices. Always true:
//!
//! - A device has one connection at a time. A request that was not answered over the last one is
//!   sent again over the next one, before every request that the kernel has given since.
//! - Nothing is sent before a connection is there that may write. The daemon gives that right only
//!   when the last write of every connection that was cut off has ended, be it one of this process
//!   or of one before it that was killed. So no late write of an old connection lands on a newer
//!   one. A shared volume has no such right, so it gets no device of this kind.
//! - Until the kernel is answered, nothing that depends on a request is given to us. So to carry
//!   out a request twice, and the ones without an answer in another order, changes nothing that a
//!   program could rely on.
//! - A process that ends without a word, killed or not, leaves the device where it is; its requests
//!   wait in the kernel, which gives them to the next process again.
//!
//! Deliberately absent: several queues and connections, because one order of sending is what makes
//! sending again simple; zero copy, because a socket lies in between. All but [`requests`] needs
//! the feature `ublk`.

#[cfg(feature = "ublk")]
pub mod buffers;
#[cfg(feature = "ublk")]
pub mod device;
#[cfg(feature = "ublk")]
pub mod link;
#[cfg(feature = "ublk")]
pub mod queue;
pub mod requests;
