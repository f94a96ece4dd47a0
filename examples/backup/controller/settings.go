package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Settings are the values of the ConfigMap.
type Settings struct {
	LogLevel   slog.Level // logLevel, such as INFO or DEBUG; INFO without it
	Workers    int        // workers, the number of backups that are reconciled at once; 4 without it
	Retention  int        // retention, for backups without one; 3 without it
	Namespaces []string   // namespaces, separated by space; required
}

// ParseSettings returns the values of a ConfigMap. Its error names each key whose value is not valid.
func ParseSettings(data map[string]string) (Settings, error) {
	s := Settings{LogLevel: slog.LevelInfo, Workers: 4, Retention: 3, Namespaces: strings.Fields(data["namespaces"])}
	var bad []string
	for key, value := range data {
		var err error
		switch key {
		case "logLevel":
			if s.LogLevel.UnmarshalText([]byte(value)) != nil {
				err = errors.New("use DEBUG, INFO, WARN or ERROR, or one with a number, such as DEBUG-2")
			}
		case "workers":
			s.Workers, err = between(value, 1, maxWorkers)
		case "retention":
			s.Retention, err = between(value, 1, maxRetention)
		case "namespaces": // parsed above
		default:
			err = errors.New("no such setting: remove it, or correct its name")
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s is %q: %v", key, value, err))
		}
	}
	if len(s.Namespaces) == 0 {
		bad = append(bad, "namespaces is empty: name at least one namespace")
	}
	for _, namespace := range s.Namespaces {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			bad = append(bad, fmt.Sprintf("namespaces has %q: use names of namespaces, separated by space", namespace))
		}
	}
	if len(bad) == 0 {
		return s, nil
	}
	slices.Sort(bad) // the order of a map differs from call to call, and each new text would be a new Event
	return Settings{}, errors.New(strings.Join(bad, "; "))
}

// between parses a number.
func between(value string, least, most int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("use a number from %d to %d", least, most)
	}
	return n, nil
}

// Live has the Settings that are in effect. It may be used concurrently.
type Live struct {
	Level *slog.LevelVar // of the log
	Limit *Limit

	mu    sync.Mutex // guards the fields below, and that effects come in the order of the reads
	valid Settings
}

// Load reads the ConfigMap with get, and puts its settings into effect. If they are not valid or get
// fails, it returns the error, and the last valid settings, which stay in effect.
func (l *Live) Load(get func() (*corev1.ConfigMap, error)) (Settings, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	configMap, err := get()
	if err != nil {
		return l.valid, fmt.Errorf("read the settings: %w", err)
	}
	settings, err := ParseSettings(configMap.Data)
	if err != nil {
		return l.valid, fmt.Errorf("settings %s/%s: %w", configMap.Namespace, configMap.Name, err)
	}
	l.Level.Set(settings.LogLevel)
	l.Limit.Set(settings.Workers)
	l.valid = settings
	return settings, nil
}
