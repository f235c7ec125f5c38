//! libFuzzer's way into `trace::native`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::trace::native(input);
});
