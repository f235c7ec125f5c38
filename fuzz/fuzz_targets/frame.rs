//! libFuzzer's way into `frame::frame`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::frame::frame(input);
});
