package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
)

// FuzzParse compares the parser with encoding/json. Both read valid JSON as the same
// values, with duplicate members, up to the parser's own depth. No input makes the
// parser panic, or makes more nodes than it has bytes.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `null`, `true`, `false`, `nul`, `truefalse`, `{}`, `[]`, ` [ 1 , 2 ] `, `[1,]`, `{"a":1,}`, `{"a"}`, `{a:1}`, `[1 2]`, `{} {}`,
		`0`, `-0`, `01`, `-`, `+1`, `1.`, `.5`, `1.5e+10`, `1e`, `1E-2`, `1e5.5`, `1-2`, `--1`, `123456789012345678901234567890`,
		`""`, `"a`, `"\u0041\/\"\\\b\f\n\r\t"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\ud83dx"`, `"\ud83d\u0041"`, `"\uD83D\n"`, `"\u00g0"`, `"\x"`, `"\`, `"\u12`,
		"\"\xff\xfe\"", "\"\xed\xa0\x80\"", "\"a\x00b\"", "\"\\n\x01\"", "\"\u2028\"", "\xef\xbb\xbf{}",
		`{"a":1,"a":2}`, `{"":{"":[]}}`,
		`{"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:set":{"v:\"a\"":{}}}}`,
		strings.Repeat(`[`, 501) + strings.Repeat(`]`, 501), strings.Repeat(`[`, 502) + strings.Repeat(`]`, 502), strings.Repeat(`{"a":`, 10_000), strings.Repeat("[", 100_000),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, src string) {
		trees := newForest(0)
		root, err := trees.parse(src)
		if most := len(src) + 1; len(trees.nodes) > most {
			t.Errorf("%d nodes for %d bytes, want at most %d", len(trees.nodes), len(src), most)
		}
		if !json.Valid([]byte(src)) {
			return
		}
		want, deepest := decoded(t, src)
		if object, ok := want.([]jsonMember); ok {
			var got []jsonMember
			for name, value := range members(src) {
				v, _ := decoded(t, value)
				got = append(got, jsonMember{Name: string([]rune(name)), Value: v})
			}
			if len(got) != len(object) || len(got) > 0 && !reflect.DeepEqual(got, object) {
				t.Errorf("the members of %q are\n%#v, want\n%#v", src, got, object)
			}
		}
		if deepest > maxDepth {
			if err == nil {
				t.Errorf("a value at depth %d is accepted", deepest)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q is JSON, and is refused", src)
		}
		// Not by go-cmp, whose time doubles with each level of such a value.
		if got := read(trees, root); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as\n%#v, want\n%#v", src, got, want)
		}
	})
}

// A value is a text, a number, a bool, nil, or one of these.
type (
	jsonText   string
	jsonMember struct {
		Name  string
		Value any
	}
)

// decoded reads what is valid, by encoding/json, into lists and into objects as lists of
// their members.
func decoded(t *testing.T, src string) (value any, deepest int) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(src))
	dec.UseNumber()
	token := func() json.Token {
		tok, err := dec.Token()
		if err != nil {
			t.Fatalf("token of %q: %v", src, err)
		}
		return tok
	}
	var next func(depth int) any
	next = func(depth int) any {
		deepest = max(deepest, depth)
		switch tok := token(); tok {
		case json.Delim('['):
			l := []any{}
			for dec.More() {
				l = append(l, next(depth+1))
			}
			token()
			return l
		case json.Delim('{'):
			l := []jsonMember{}
			for dec.More() {
				l = append(l, jsonMember{Name: token().(string), Value: next(depth + 1)})
			}
			token()
			return l
		default:
			if s, ok := tok.(string); ok {
				return jsonText(s)
			}
			return tok
		}
	}
	value = next(0)
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("behind the value of %q: %v", src, err)
	}
	return value, deepest
}

// read does the same for what was parsed. The parser leaves invalid UTF-8 as it is,
// and encoding/json replaces each byte of it.
func read(f *forest, at int32) any {
	utf8 := func(s string) string { return string([]rune(s)) }
	switch n := f.nodes[at]; n.kind {
	case null:
		return nil
	case boolean:
		return n.value == "true"
	case number:
		return json.Number(n.value)
	case text:
		return jsonText(utf8(n.value))
	case list:
		l := []any{}
		for i := n.child; i != 0; i = f.nodes[i].next {
			l = append(l, read(f, i))
		}
		return sized(l, n.n)
	case object:
		l := []jsonMember{}
		for i := n.child; i != 0; i = f.nodes[i].next {
			l = append(l, jsonMember{Name: utf8(f.nodes[i].key), Value: read(f, i)})
		}
		return sized(l, n.n)
	default:
		return "no value"
	}
}

func sized[E any](l []E, n int32) any {
	if len(l) != int(n) {
		return fmt.Sprintf("%d children, and the node says %d", len(l), n)
	}
	return l
}
