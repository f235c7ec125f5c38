//! libFuzzer's way into `split::rules`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::split::rules(input);
});
