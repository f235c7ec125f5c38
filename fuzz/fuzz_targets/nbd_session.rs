//! libFuzzer's way into `nbd::session`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::nbd::session(input);
});
