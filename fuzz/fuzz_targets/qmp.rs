//! libFuzzer's way into `qmp::lines`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::qmp::lines(input);
});
