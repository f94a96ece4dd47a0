package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Cron is a parsed cron expression. Each field is a set of bits.
type Cron struct {
	minutes, hours, days, months, weekdays uint64

	anyDay, anyWeekday bool // the field begins with *, so it does not select days
}

// ParseCron parses five fields: minute, hour, day of month, month, and day of week from 0, a
// Sunday, to 7. A field is a list of numbers and ranges, each with an optional step, such as
// 0-30/10, and * is the whole range. If both fields of days are restricted, a day matches
// either.
func ParseCron(text string) (Cron, error) {
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return Cron{}, fmt.Errorf("cron %q has %d fields: write minute, hour, day of month, month and day of week", text, len(fields))
	}
	c := Cron{anyDay: fields[2][0] == '*', anyWeekday: fields[4][0] == '*'}
	for i, field := range []struct {
		name     string
		to       *uint64
		min, max int
	}{
		{"minute", &c.minutes, 0, 59},
		{"hour", &c.hours, 0, 23},
		{"day of month", &c.days, 1, 31},
		{"month", &c.months, 1, 12},
		{"day of week", &c.weekdays, 0, 7},
	} {
		var err error
		if *field.to, err = parseField(fields[i], field.min, field.max); err != nil {
			return Cron{}, fmt.Errorf("cron %q: %s %q: %w", text, field.name, fields[i], err)
		}
	}
	if c.weekdays>>7&1 == 1 {
		c.weekdays |= 1
	}
	if c.Next(time.Time{}).IsZero() {
		return Cron{}, fmt.Errorf("cron %q never matches: no such month has that day", text)
	}
	return c, nil
}

// parseField returns the set of numbers of a field.
func parseField(field string, least, most int) (set uint64, err error) {
	for part := range strings.SplitSeq(field, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, fmt.Errorf("the step %q is not a number above 0", stepText)
			}
		}
		first, last := least, most
		if span != "*" {
			from, to, ranged := strings.Cut(span, "-")
			if first, err = strconv.Atoi(from); err != nil {
				return 0, fmt.Errorf("%q is not a number", from)
			}
			switch {
			case ranged:
				if last, err = strconv.Atoi(to); err != nil {
					return 0, fmt.Errorf("%q is not a number", to)
				}
			case !stepped:
				last = first
			}
		}
		if first < least || last > most || first > last {
			return 0, fmt.Errorf("%q is not within %d-%d", span, least, most)
		}
		for n := first; n <= last; n += min(step, most+1) {
			set |= 1 << n
		}
	}
	return set, nil
}

// day reports whether the day of t matches.
func (c Cron) day(t time.Time) bool {
	day, weekday := c.days>>t.Day()&1 == 1, c.weekdays>>int(t.Weekday())&1 == 1
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// Next returns the first time after t that matches.
func (c Cron) Next(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Minute).Add(time.Minute)
	for end := t.AddDate(8, 1, 0); t.Before(end); { // from one 29 February to the next
		switch {
		case c.months>>int(t.Month())&1 == 0:
			t = time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		case !c.day(t):
			t = time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, time.UTC)
		case c.hours>>t.Hour()&1 == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case c.minutes>>t.Minute()&1 == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

// Newest returns the last time after t and not after now that matches, or the zero time.
func (c Cron) Newest(t, now time.Time) time.Time {
	for now = now.UTC().Truncate(time.Minute); now.After(t); {
		switch {
		case c.months>>int(now.Month())&1 == 0:
			now = time.Date(now.Year(), now.Month(), 1, 0, -1, 0, 0, time.UTC)
		case !c.day(now):
			now = time.Date(now.Year(), now.Month(), now.Day(), 0, -1, 0, 0, time.UTC)
		case c.hours>>now.Hour()&1 == 0:
			now = now.Truncate(time.Hour).Add(-time.Minute)
		case c.minutes>>now.Minute()&1 == 0:
			now = now.Add(-time.Minute)
		default:
			return now
		}
	}
	return time.Time{}
}
