//! Text transforms that come before hashing: a canonical spelling, and paragraphs.

/// Appends the canonical spelling of `text`: lower case, no ASCII punctuation, single spaces, no space at the ends.
///
/// Lower case and white space are Unicode's (`White_Space`); punctuation is the 32 ASCII marks and vanishes without
/// leaving a gap, so `don't` becomes `dont`.
pub fn clean_into(text: &str, out: &mut String) {
    let lowered;
    let text = if text.is_ascii() {
        text
    } else {
        lowered = text.to_lowercase();
        &lowered
    };
    let start = out.len();
    let mut gap = false;
    for character in text.chars() {
        if character.is_whitespace() {
            gap = true;
        } else if !character.is_ascii_punctuation() {
            if gap && out.len() > start {
                out.push(' ');
            }
            gap = false;
            out.push(character.to_ascii_lowercase());
        }
    }
}

/// The non-empty pieces between line feeds, as half-open byte ranges.
pub fn paragraphs(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut start = 0;
    text.split('\n').filter_map(move |piece| {
        let span = (start, start + piece.len());
        start = span.1 + 1;
        (!piece.is_empty()).then_some(span)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        let mut out = String::new();
        clean_into(text, &mut out);
        out
    }

    #[test]
    fn cleaning_lowers_strips_marks_and_collapses_space() {
        assert_eq!(clean("  Hello,\t\u{a0}WORLD!\n\nDon't "), "hello world dont");
        assert_eq!(clean("ÄÖ — ΣΑΣ"), "äö — σας");
        assert_eq!(clean(" . "), "");
    }

    #[test]
    fn cleaning_is_idempotent() {
        let once = clean("A  b.\u{2003}C-d İ");
        assert_eq!(clean(&once), once);
    }

    #[test]
    fn cleaning_appends_without_a_leading_space() {
        let mut out = String::from("x");
        clean_into(" y", &mut out);
        assert_eq!(out, "xy");
    }

    #[test]
    fn paragraphs_are_byte_ranges_of_the_input() {
        let text = "é\n\nsecond\n";
        let found: Vec<_> = paragraphs(text).map(|(start, end)| &text[start..end]).collect();
        assert_eq!(found, ["é", "second"]);
        assert_eq!(paragraphs(text).collect::<Vec<_>>(), [(0, 2), (4, 10)]);
        assert_eq!(paragraphs("").count(), 0);
    }
}
