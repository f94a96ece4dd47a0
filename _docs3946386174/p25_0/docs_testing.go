package page

import (
	"context"
	"log"
	"os"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/server"
)

var config *rest.Config

func TestMain(m *testing.M) {
	s, err := server.Start(context.Background(), server.Options{CRDs: []string{"../config/crd"}})
	if err != nil {
		log.Fatal(err)
	}
	config = s.Config()
	code := m.Run()
	if err := s.Stop(); err != nil {
		log.Print(err)
	}
	os.Exit(code)
}
