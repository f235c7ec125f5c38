//! What guests speak to.
//!
//! Always true: a frontend holds no payload and knows no block's place; the shard owns buffers,
//! time and every request. NBD is a pure machine that turns bytes into requests and replies into
//! bytes. The control side of vhost-user does more: it maps the guest's memory, because a request
//! is in it, and has a thread for each front end, because its messages wait until rings are
//! drained. Deliberately absent: origins, policies, and anything that knows where a block lies.

pub mod nbd;
pub mod vhost_user;
