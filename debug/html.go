package debug

import (
	"fmt"
	"html"
	"io"
	"net/url"
	"strings"
	"time"
)

// The page is written by hand. A program that imports html/template is twice as large, because
// templates call methods by name, and the linker then keeps all methods of all clients.

// markup is HTML. Any other value is text, which a writer escapes.
type markup string

// writer writes HTML. The first error ends it.
type writer struct {
	out io.Writer
	err error
}

// write writes a format whose verbs are %v, with the values escaped.
func (w *writer) write(format string, values ...any) {
	for i, v := range values {
		if m, ok := v.(markup); ok {
			values[i] = string(m)
		} else {
			values[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, values...)
	}
}

// link returns the key as a link to its story.
func link(key string) markup {
	return markup(`<a href="?key=` + url.QueryEscape(key) + `">` + html.EscapeString(key) + "</a>")
}

// table writes a table. Each call of row writes a row.
func (w *writer) table(columns []string, rows func(row func(cells ...any))) {
	w.write("<table>\n<tr>")
	for _, c := range columns {
		w.write("<th>%v</th>", c)
	}
	w.write("</tr>\n")
	rows(func(cells ...any) {
		w.write("<tr>")
		for _, c := range cells {
			w.write("<td>%v</td>", c)
		}
		w.write("</tr>\n")
	})
	w.write("</table>\n")
}

// page writes the state as a page.
func (w *writer) page(s *state) {
	key := ""
	if s.Search != "" {
		key = "&key=" + url.QueryEscape(s.Search)
	}
	w.write(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>%v</title>
<style>%v</style>
</head>
<body>
<h1>%v</h1>
<p class="n">%v. <a href="?format=json%v">JSON</a>. With JavaScript the page reloads every 5s: <a href="?reload=off%v">stop</a>.</p>
<form method="get"><label>Key, such as default/web: <input name="key" value="%v" maxlength="1024"></label> <button>Tell its story</button>`,
		s.Title, markup(style), s.Title, stamp(s.Now), key, key, s.Search)
	if s.Search != "" {
		w.write(` <a href="?">All keys</a>`)
	}
	w.write("</form>\n")
	if s.Search != "" {
		w.story(s)
	}
	if s.CanSet {
		w.verbosity(s)
	}
	if l := s.Leader; l != nil {
		w.write("<h2>Leader</h2>\n<p>")
		if l.Leading {
			w.write("This process leads")
		} else {
			w.write("This process does not lead, so its controllers do not run")
		}
		w.write(": Lease %v, term %v", l.Lease, l.Term)
		if !l.Since.IsZero() {
			w.write(", since %v (%v)", stamp(l.Since), ago(s.Now, l.Since))
		}
		w.write(".</p>\n")
	}
	if n := s.Shards; n != nil {
		w.write("<h2>Shards</h2>\n<p>%v replicas take part. This process owns %v shards, of which %v drain. %v shards have no owner, and %v must move.</p>\n",
			n.Replicas, len(n.Owned), n.Draining, n.Ownerless, n.Surplus)
		if len(n.Owned) > 0 {
			w.write("<p>Owned: %v.</p>\n", strings.Trim(fmt.Sprint(n.Owned), "[]"))
		}
	}
	if s.More != "" {
		w.write("<p>%v</p>\n", s.More)
	}
	for _, c := range s.Controllers {
		w.controller(s.Now, &c)
	}
	if len(s.Informers) > 0 {
		w.write("<h2>Informers</h2>\n")
		w.table([]string{"resource", "objects", "memory", "last change", "last data"}, func(row func(cells ...any)) {
			for _, i := range s.Informers {
				name := i.Name
				if i.Mutated != "" {
					name += ": the program changed " + i.Mutated + " in the cache"
				}
				row(name, i.Objects, size(i.Bytes), ago(s.Now, i.LastEvent), ago(s.Now, i.LastData))
			}
		})
	}
	w.write("<script>%v</script>\n</body>\n</html>\n", markup(script))
}

// verbosity writes the form that sets the verbosity.
func (w *writer) verbosity(s *state) {
	w.write(`<form method="post"><label>Verbosity of the log, 0 to 5: <input class="s" name="verbosity" value="4" maxlength="1"></label> <label>for <input class="s" name="for" value="10m" maxlength="16"></label> <button>Set it</button>`)
	if v := s.Verbosity; v != nil {
		w.write(" It is %v until %v, then %v again.", v.Level, stamp(v.Until), v.Former)
	}
	w.write("</form>\n")
}

func (w *writer) story(s *state) {
	w.write("<h2 id=\"story\">%v</h2>\n", s.Search)
	for _, story := range s.Story {
		w.write("<h3>In %v</h3>\n<p class=\"verdict\">%v</p>\n", story.Controller, story.Verdict)
		w.table([]string{"time", "", "kind", "what", "took"}, func(row func(cells ...any)) {
			for _, l := range story.Lines {
				row(stamp(l.At), ago(s.Now, l.At), l.Kind, l.Text, l.Took)
			}
		})
	}
	if len(s.Story) == 0 {
		w.write("<p class=\"verdict\">No controller of this process knows the key. It had no event that is still remembered, or the name is wrong: use namespace/name.</p>\n")
	}
}

func (w *writer) controller(now time.Time, c *controllerState) {
	w.write("<h2>Controller %v</h2>\n<p>", c.Name)
	if c.Running {
		w.write("%v of %v workers are busy.", c.Busy, c.Workers)
	} else {
		w.write("It does not run.")
	}
	if c.ShuttingDown {
		w.write(" Its queue is shut down.")
	}
	w.write("</p>\n")
	var states []string
	var keys []any
	for _, n := range c.Counts {
		states = append(states, n.State)
		cell := fmt.Sprint(n.Keys)
		if n.Shown < n.Keys {
			cell += fmt.Sprintf(` <span class="n">(%d shown)</span>`, n.Shown)
		}
		keys = append(keys, markup(cell))
	}
	w.table(states, func(row func(cells ...any)) { row(keys...) })
	if len(c.Keys) > 0 {
		w.write("<h3>Keys</h3>\n")
		columns := []string{"key", "state", "why", "since", "until", "priority", "attempts", "events since the last call", "last result"}
		w.table(columns, func(row func(cells ...any)) {
			for _, k := range c.Keys {
				since, until, last := "", "", ""
				if !k.Since.IsZero() {
					since = ago(now, k.Since)
				}
				if !k.Until.IsZero() {
					until = ago(now, k.Until)
				}
				if k.Last != nil {
					last = k.Last.Result + " " + ago(now, k.Last.At)
				}
				row(link(k.Key), k.State, k.Why, since, until, k.Priority, k.Attempts, strings.Join(k.Triggers, ", "), last)
			}
		})
	}
	if len(c.Blocked) > 0 {
		w.write("<h3>Finalizers that block</h3>\n")
		w.table([]string{"key", "finalizer and steps", "deleted"}, func(row func(cells ...any)) {
			for _, l := range c.Blocked {
				row(link(l.Key), l.Text, ago(now, l.At))
			}
		})
	}
	if len(c.Paused) > 0 {
		w.write("<h3>Paused objects</h3>\n<p>")
		for _, key := range c.Paused {
			w.write("%v ", link(key))
		}
		w.write("</p>\n")
	}
	w.calls("Last calls without success", c.Failures)
	w.calls("Last calls", c.Results)
}

func (w *writer) calls(title string, calls []callRow) {
	if len(calls) == 0 {
		return
	}
	w.write("<h3>%v</h3>\n", title)
	w.table([]string{"began", "key", "result", "attempt", "took", "triggers"}, func(row func(cells ...any)) {
		for _, c := range calls {
			row(stamp(c.At), link(c.Key), c.Result, c.Attempt, c.Took, strings.Join(c.Triggers, ", "))
		}
	})
}
