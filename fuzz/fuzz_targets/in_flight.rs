//! libFuzzer's way into `rings::in_flight`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::rings::in_flight(input);
});
