package io.smtt.marker;

/** An RDD's or a stage's description on the driver: words and strings by their names, in the order of the fact. */
final class Description {
    private final FactForm form;
    private final Object[] values;

    Description(FactForm form) {
        this.form = form;
        values = new Object[form.words.length + form.strings.length];
    }

    Description word(int word, long value) {
        values[form.placeOfWord(word)] = value;
        return this;
    }

    Description text(int string, String value) {
        values[form.words.length + form.placeOfString(string)] = value == null ? "" : value;
        return this;
    }

    /** Words, then strings. */
    Object[] values() {
        for (Object value : values) {
            if (value == null) {
                throw new IllegalStateException(form.entry + " is not complete");
            }
        }
        return values;
    }
}
