pub mod file;
pub mod san;
