package io.smtt.marker;

/** An RDD's, a stage's or a job's description on the driver: words and strings by their names, in the order of the fact. */
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

    /** Longer texts are cut here, before the catalogue keeps them and sends them to every executor. */
    Description text(int string, String value) {
        int place = form.placeOfString(string);
        values[form.words.length + place] = value == null ? "" : cut(value, form.limits[place]);
        return this;
    }

    /** At most as many characters as the fact has bytes: {@link FactWriter} cuts the rest of what takes more. */
    private static String cut(String value, int most) {
        if (value.length() <= most) {
            return value;
        }
        return value.substring(0, Character.isHighSurrogate(value.charAt(most - 1)) ? most - 1 : most);
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
