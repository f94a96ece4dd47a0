package metrics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"
)

// exemplar returns the exemplar of a duration in ctx, or nil.
func (m *Metrics) exemplar(ctx context.Context, d time.Duration) *dto.Exemplar {
	if m.Exemplar == nil {
		return nil
	}
	labels := m.Exemplar(ctx)
	if len(labels) == 0 {
		return nil
	}
	pairs, err := exemplarLabels(labels)
	if err != nil {
		m.wrongExemplar.Do(func() {
			klog.FromContext(ctx).Error(err, "Dropped an exemplar, as all that are not valid: only the first one is logged")
		})
		return nil
	}
	return &dto.Exemplar{Label: pairs, Value: new(d.Seconds()), Timestamp: timestamppb.Now()}
}

// exemplarLabels returns the labels by name, or an error if Prometheus does not accept them.
func exemplarLabels(labels map[string]string) ([]*dto.LabelPair, error) {
	runes := 0
	for name, value := range labels { // at most 128 of them
		// A string of more bytes than this has too many runes. It is not read.
		const most = prometheus.ExemplarMaxRunes * utf8.UTFMax
		if len(name) > most || len(value) > most {
			runes = most
		} else {
			runes += max(1, utf8.RuneCountInString(name)) + utf8.RuneCountInString(value)
		}
		if runes > prometheus.ExemplarMaxRunes {
			return nil, fmt.Errorf("metrics: Exemplar returned labels of more than %d runes: shorten their names and values", prometheus.ExemplarMaxRunes)
		}
	}
	pairs := make([]*dto.LabelPair, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		value := labels[name]
		if !labelName(name) {
			return nil, fmt.Errorf("metrics: Exemplar returned the label name %q: use letters, digits and underscores, and a letter first", name)
		}
		if !utf8.ValidString(value) {
			return nil, fmt.Errorf("metrics: Exemplar returned the value %q of the label %s: use UTF-8", value, name)
		}
		pairs = append(pairs, &dto.LabelPair{Name: new(name), Value: new(value)})
	}
	return pairs, nil
}

// labelName reports whether each version of Prometheus accepts the name of a label.
func labelName(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r != '_' && (r < '0' || r > '9')) {
			return false
		}
	}
	return name != ""
}
