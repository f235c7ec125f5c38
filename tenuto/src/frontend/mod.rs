//! What guests speak to: protocol machines that turn bytes into requests and replies into bytes.
//!
//! Always true: a frontend is a pure machine. It does no I/O, reads no clock and holds no payload;
//! the shard owns sockets, buffers and time. Deliberately absent: origins, policies, and anything
//! that knows where a block lies.

pub mod nbd;
