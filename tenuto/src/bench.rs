//! Measurements of the product by itself.
//!
//! Always true: a figure comes with what it was measured on, and nothing is printed here.

pub mod burst;
pub mod engine;
