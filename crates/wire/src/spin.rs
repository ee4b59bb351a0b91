/// A fixed amount of plain arithmetic in a chain that no compiler can shorten. Run by the host and by the guest,
/// the two times give the emulator's factor.
#[inline(never)]
pub fn spin(rounds: u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..rounds {
        // xorshift64* with the round mixed in.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state = state.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ round;
    }
    state
}
