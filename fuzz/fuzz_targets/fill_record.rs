//! libFuzzer's way into `fill::record`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::fill::record(input);
});
