use super::Console;

#[test]
fn a_short_text_is_whole() {
    let mut console = Console::new();
    console.push(b"Linux ");
    console.push(b"6.1");
    assert_eq!(console.bytes(), b"Linux 6.1");
    assert_eq!(console.dropped(), 0);
}

#[test]
fn a_full_console_drops_nothing() {
    let mut console = Console::new();
    let text = vec![b'x'; Console::FIRST + Console::LAST];
    console.push(&text);
    assert_eq!(console.bytes(), text);
    console.push(b"y");
    assert_eq!(console.dropped(), 1);
}

#[test]
fn the_beginning_and_the_end_stay_however_it_was_cut() {
    let text: Vec<u8> = (0u32..200_000).flat_map(u32::to_le_bytes).collect();
    let whole = text.len() - Console::FIRST - Console::LAST;
    for piece in [1000, 4096, 70_001, text.len()] {
        let mut console = Console::new();
        for part in text.chunks(piece) {
            console.push(part);
        }
        assert_eq!(console.dropped(), whole as u64, "{piece}");
        let mut expect = text[..Console::FIRST].to_vec();
        expect.extend_from_slice(format!("\n[{whole} bytes left out]\n").as_bytes());
        expect.extend_from_slice(&text[text.len() - Console::LAST..]);
        assert!(console.bytes() == expect, "{piece}");
    }
}
