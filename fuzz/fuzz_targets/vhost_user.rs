//! libFuzzer's way into `vhost_user::messages`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::vhost_user::messages(input);
});
