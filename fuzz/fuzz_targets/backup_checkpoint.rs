//! libFuzzer's way into `backup::checkpoint`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::backup::checkpoint(input);
});
