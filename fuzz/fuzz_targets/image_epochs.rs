//! libFuzzer's way into `epochs::epochs`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::epochs::epochs(input);
});
