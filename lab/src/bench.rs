//! Measurements of the product by itself.
//!
//! Always true: a figure comes with what it was measured on, and nothing is printed here.

pub mod burst;
pub mod cow;
pub mod desktops;
pub mod destage;
mod direct;
pub mod durability;
pub mod engine;
pub mod failover;
mod hosts;
pub mod images;
mod limit;
pub mod micro;
pub mod migrate;
pub mod neighbour;
mod null;
mod null_rings;
mod own_process;
mod pipe;
pub mod policies;
pub mod range;
pub mod record;
pub mod replicas;
pub mod restart;
mod rings;
mod rounds;
mod split_disks;
mod wire;
mod work;
