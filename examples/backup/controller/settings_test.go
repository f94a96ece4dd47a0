package controller_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/examples/backup/controller"
)

func TestParseSettings(t *testing.T) {
	for _, test := range []struct {
		name string
		data map[string]string
		want controller.Settings
	}{
		{
			name: "defaults", data: map[string]string{"namespaces": "a"},
			want: controller.Settings{LogLevel: slog.LevelInfo, Workers: 4, Retention: 3, Namespaces: []string{"a"}},
		},
		{
			name: "all", data: map[string]string{"namespaces": " a\nb ", "logLevel": "debug-2", "workers": "32", "retention": "100"},
			want: controller.Settings{LogLevel: slog.LevelDebug - 2, Workers: 32, Retention: 100, Namespaces: []string{"a", "b"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := controller.ParseSettings(test.data)
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("ParseSettings() error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestParseSettingsErrors(t *testing.T) {
	for _, test := range []struct {
		data map[string]string
		want string // the whole text
	}{
		{map[string]string{}, "namespaces is empty: name at least one namespace"},
		{map[string]string{"namespaces": "a B"}, `namespaces has "B": use names of namespaces, separated by space`},
		{map[string]string{"namespaces": "a", "workers": "0"}, `workers is "0": use a number from 1 to 32`},
		{map[string]string{"namespaces": "a", "workers": "33"}, `workers is "33": use a number from 1 to 32`},
		{map[string]string{"namespaces": "a", "retention": "all"}, `retention is "all": use a number from 1 to 100`},
		{map[string]string{"namespaces": "a", "retention": ""}, `retention is "": use a number from 1 to 100`},
		{map[string]string{"namespaces": "a", "logLevel": "loud"}, `logLevel is "loud": use DEBUG, INFO, WARN or ERROR, or one with a number, such as DEBUG-2`},
		{map[string]string{"namespaces": "a", "loglevel": "INFO"}, `loglevel is "INFO": no such setting: remove it, or correct its name`},
		{
			map[string]string{"namespaces": "a", "workers": "x", "retention": "y"},
			`retention is "y": use a number from 1 to 100; workers is "x": use a number from 1 to 32`,
		},
	} {
		if _, err := controller.ParseSettings(test.data); err == nil || err.Error() != test.want {
			t.Errorf("ParseSettings(%q) = %v, want %s", test.data, err, test.want)
		}
	}
}

func TestLive(t *testing.T) {
	live := &controller.Live{Level: new(slog.LevelVar), Limit: &controller.Limit{}}
	load := func(data map[string]string, err error) (controller.Settings, error) {
		return live.Load(func() (*corev1.ConfigMap, error) {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "settings"}, Data: data}, err
		})
	}
	if got, err := load(map[string]string{"namespaces": "a", "logLevel": "LOUD"}, nil); err == nil || got.Namespaces != nil {
		t.Errorf("the first settings are invalid: %v, error %v, want none", got, err)
	}
	good, err := load(map[string]string{"namespaces": "a", "logLevel": "WARN", "retention": "7"}, nil)
	if err != nil || live.Level.Level() != slog.LevelWarn {
		t.Fatalf("error %v, level %v, want WARN", err, live.Level.Level())
	}
	got, err := load(map[string]string{"namespaces": "a", "logLevel": "DEBUG", "retention": "0"}, nil)
	if diff := cmp.Diff(good, got); diff != "" || err == nil || !strings.Contains(err.Error(), `settings system/settings: retention is "0"`) || live.Level.Level() != slog.LevelWarn {
		t.Errorf("invalid settings: error %v, level %v, want the last valid ones (-want +got):\n%s", err, live.Level.Level(), diff)
	}
	gone := errors.New("gone")
	got, err = load(nil, gone)
	if diff := cmp.Diff(good, got); diff != "" || !errors.Is(err, gone) {
		t.Errorf("absent settings: error %v, want the last valid ones (-want +got):\n%s", err, diff)
	}
}
