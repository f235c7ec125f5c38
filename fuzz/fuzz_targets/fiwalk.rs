//! libFuzzer's way into `places::fiwalk`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::places::fiwalk(input);
});
