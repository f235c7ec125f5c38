//! Turns fuzz input into decisions.
//!
//! Always true: an input that ends early decides for zero from there on, so every input is valid
//! and a shorter one is a simpler case.

pub struct Source<'a> {
    rest: &'a [u8],
}

impl<'a> Source<'a> {
    pub fn new(input: &'a [u8]) -> Source<'a> {
        Source { rest: input }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// At most `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let head = self.take(N);
        out[..head.len()].copy_from_slice(head);
        out
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn bytes16(&mut self) -> [u8; 16] {
        self.array()
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u16()) % bound
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number of the kind that breaks things: small, at a power of two, near the end, or any.
    pub fn number(&mut self) -> u64 {
        let kind = self.byte();
        match kind % 4 {
            0 => u64::from(self.byte()),
            1 => (1u64 << (kind / 4))
                .wrapping_add(u64::from(self.byte()))
                .wrapping_sub(128),
            2 => u64::MAX - u64::from(self.byte()),
            _ => self.u64(),
        }
    }

    /// A text of at most `bytes_max` bytes.
    pub fn text(&mut self, bytes_max: usize) -> String {
        let count = self.below(bytes_max + 1);
        self.take(count)
            .iter()
            .map(|byte| char::from(byte & 0x7f))
            .collect()
    }

    /// Changes a few bytes, and sometimes the length.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.byte() % 8 {
            let at = usize::from(self.u16());
            let value = self.byte();
            let length = bytes.len();
            match bytes.get_mut(at % length.max(1)) {
                Some(byte) => *byte ^= value,
                None => return,
            }
        }
        match self.byte() {
            1 => bytes.truncate(usize::from(self.u16())),
            2 => bytes.extend_from_slice(self.take(64)),
            _ => {}
        }
    }
}
